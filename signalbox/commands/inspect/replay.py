"""`signalbox replay`: checks that a scheduler decides again as in a recording."""

import argparse
import asyncio
import difflib
import sys
from typing import Any

from signalbox.client.named_files import reading, writing
from signalbox.commands.inspect.dump import write_state


class Differs(RuntimeError):
    """A decision differs from the recorded one."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="written by `signalbox scheduler --recording-path`"
    )
    parser.add_argument(
        "--until",
        type=int,
        metavar="STEP",
        help="stop after so many steps, of all workers together, and print the state then as JSON",
    )
    parser.add_argument(
        "--dump", metavar="FILE", help="write the state at the end of the replay to a file"
    )
    parser.add_argument("--token-ids", action="store_true", help="include token ids in the state")
    parser.add_argument(
        "--check", action="store_true", help="check the scheduler's invariants after each record"
    )
    played = parser.add_argument_group("playing it")
    played.add_argument(
        "--console",
        action="store_true",
        help="show the recording in the console, from a port on this machine, until Ctrl-C",
    )
    played.add_argument(
        "--speed",
        type=float,
        metavar="X",
        help="factor of the recorded times, with --console (default 1)",
    )
    played.add_argument(
        "--port", type=int, metavar="N", help="port of --console (default: any that is free)"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Prints the number of replayed steps, or plays them in the console. Raises Differs at the
    first step that differs."""
    _check(options)
    from signalbox_scheduler.service.replay.replay_codec import Replay

    with reading(options["file"]):
        replay = Replay(options["file"], until_step=options["until"], checks=options["check"])
    if options["console"]:
        _play(replay, options)
        return
    difference = replay.run()
    if options["dump"] or (options["until"] is not None and difference is None):
        with writing(options["dump"], "--dump"):
            write_state(replay.state(include_token_ids=options["token_ids"]), options["dump"])
    if difference is not None:
        print("\n".join(_both(difference.recorded, difference.replayed)))
        raise Differs(
            f"step {difference.num_steps} of the recording, step {difference.step_id} of worker"
            f" {difference.worker}, is planned differently (- recorded, + replayed)"
        )
    if options["until"] is None:
        print(f"{replay.num_steps} steps reproduced, of {replay.num_records} records")
    if replay.num_left_over:
        note = f"the file ends within a record, whose {replay.num_left_over} bytes were left out"
        print(note, file=sys.stderr)


def _check(options: dict[str, Any]) -> None:
    """Raises ValueError for flags that have no effect together."""
    is_played = options["console"]
    needless = ("dump", "token_ids") if is_played else ("speed", "port")
    for name in needless:
        if options[name] is not None and options[name] is not False:
            has = "has no effect with" if is_played else "needs"
            raise ValueError(f"--{name.replace('_', '-')} {has} --console")
    if is_played and options["speed"] is not None and not options["speed"] > 0:
        raise ValueError(f"--speed is {options['speed']}; it must be above 0")


def _play(replay: Any, options: dict[str, Any]) -> None:
    from signalbox.commands.inspect.replay_console import play

    speed, port = options["speed"] or 1.0, options["port"] or 0
    asyncio.run(play(replay, options["file"], speed=speed, port=port))


def _both(recorded: list[str] | None, replayed: list[str] | None) -> list[str]:
    """Returns both messages as one text, with the differing lines marked."""
    none = ["(no step)"]
    lines = difflib.ndiff(recorded or none, replayed or none)
    return [line for line in lines if not line.startswith("?")]
