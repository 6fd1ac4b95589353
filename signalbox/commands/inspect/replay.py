"""`signalbox replay`: checks that a scheduler decides again as in a recording."""

import argparse
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
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Prints the number of replayed steps. Raises Differs at the first step that differs."""
    from signalbox_scheduler.service.replay.replay_codec import Replay

    with reading(options["file"]):
        replay = Replay(options["file"], until_step=options["until"], checks=options["check"])
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


def _both(recorded: list[str] | None, replayed: list[str] | None) -> list[str]:
    """Returns both messages as one text, with the differing lines marked."""
    none = ["(no step)"]
    lines = difflib.ndiff(recorded or none, replayed or none)
    return [line for line in lines if not line.startswith("?")]
