"""A compiler that writes AVX-VNNI's byte products as AVX-512 VNNI encodes them in 256 bits.

    python evex_compiler.py g++ ... -c unit.cpp -o unit.o

Both encodings of `vpdpbusd` do the same; more processors at hand have the second.
"""

import re
import subprocess
import sys
from pathlib import Path


def main(command: list[str]) -> int:
    if "-c" not in command:
        return subprocess.run(command).returncode
    target = Path(command[command.index("-o") + 1])
    assembly = target.with_suffix(".s")
    to_assembly = ["-S" if word == "-c" else word for word in command]
    to_assembly[to_assembly.index("-o") + 1] = str(assembly)
    status = subprocess.run(to_assembly).returncode
    if status:
        return status
    text = re.sub(r"\{vex\}(\s+vpdpbusd)", r"{evex}\1", assembly.read_text())
    assembly.write_text(text)
    return subprocess.run([command[0], "-c", str(assembly), "-o", str(target)]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
