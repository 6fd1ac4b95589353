"""mistral.rs as a library.

It takes text, not token ids: a prompt is the text of the ids, cut to as many tokens as it is read
back as. Requests are streams, because a call that returns an answer admits one request at a time.
"""

import json
import tempfile
from pathlib import Path

from mistralrs import ChatCompletionRequest, Runner, Which
from serve_lines import parse_arguments, serve

BARE_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def main() -> None:
    arguments = parse_arguments()
    template = Path(tempfile.mkdtemp()) / "bare.jinja"
    template.write_text(BARE_TEMPLATE)
    runner = Runner(
        which=Which.Plain(arguments.model),
        max_seqs=32,
        prefix_cache_n=0,
        jinja_explicit=str(template),
        **json.loads(arguments.options),
    )

    def text_of(prompt: list[int]) -> str:
        text = runner.detokenize_text(prompt, False)
        while len(runner.tokenize_text(text, False, None)) > len(prompt):
            text = text[:-1]
        return text

    def generate(prompts: list[list[int]], max_tokens: int) -> tuple[list[int], int | None]:
        streams = [
            runner.send_chat_completion_request(
                ChatCompletionRequest(
                    messages=text_of(prompt),
                    model="default",
                    max_tokens=max_tokens,
                    temperature=0.0,
                    ignore_eos=True,
                    stream=True,
                )
            )
            for prompt in prompts
        ]
        usages = [[chunk.usage for chunk in stream][-1] for stream in streams]
        return [usage.completion_tokens for usage in usages], None

    serve(arguments.port, generate)


if __name__ == "__main__":
    main()
