"""Commands of Ollama, of vLLM and of earlier versions: the names of ours that do the same, or what
to use instead.
"""

from collections.abc import Mapping, Sequence

ALIASES: Mapping[str, Sequence[str]] = {
    "ls": ["list"],
    "start": ["serve"],
    "complete": ["generate"],
    "collect-env": ["doctor"],
    "version": ["--version"],
    "download": ["pull"],
    "remove": ["rm"],
    "delete": ["rm"],
    "completions": ["completion"],
    "bench serve": ["bench"],
}
"""Our words for the commands of other programs."""
POINTERS: Mapping[str, str] = {
    "show": "`signalbox models` shows what a router serves, `signalbox list` what was fetched",
    "stop": "`signalbox unload` ends a model of several, Ctrl-C or SIGTERM a server, and `signalbox"
    " drain` lets a worker leave",
    "create": "flags of serve take the place of a Modelfile, such as --override-generation-config",
    "cp": "--served-model-name gives a model several names",
    "push": "models are files; there is no registry to publish them in",
    "launch": "`signalbox serve` starts all services, and each is a command of its own",
    "signin": "set HF_TOKEN in the environment",
    "signout": "unset HF_TOKEN in the environment",
    "quantize": "--quantization int8 or int4 quantises a model as it is loaded",
    "scale": "start serve with another --workers; on Kubernetes the HorizontalPodAutoscaler of"
    " deploy/kubernetes follows the load",
}
HELP = "help"


def as_ours(arguments: Sequence[str]) -> list[str]:
    """Returns a command line with our command for another program's: `help serve` is `serve
    --help`."""
    if not arguments:
        return []
    command, *rest = arguments
    if command == HELP:
        named = [one for one in rest if not one.startswith("-")][:1]
        return [*as_ours(named), "--help"]
    if (two := " ".join(arguments[:2])) in ALIASES:
        return [*ALIASES[two], *rest[1:]]
    return [*ALIASES.get(command, [command]), *rest]
