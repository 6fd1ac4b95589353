"""Model families that the scripted model plays."""

from tests.agents.scripted_executor import Family

_CHATML = """{%- if tools %}<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}

{% endif %}# Tools
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
<|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != "system" or not loop.first %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

CHATML = Family(
    template=_CHATML,
    opening="<|im_start|>assistant\n",
    end="<|im_end|>",
    tokens=("<|im_start|>", "<|im_end|>"),
    plain_tokens=("<tool_call>", "</tool_call>", "<think>", "</think>"),
)
"""As Qwen 3 and Hermes write: reasoning and calls between markers that are tokens."""
