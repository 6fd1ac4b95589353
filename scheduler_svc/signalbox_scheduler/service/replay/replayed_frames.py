"""The frames that a watcher of a recorded scheduler would have had, made by replaying it."""

from signalbox_scheduler.service.replay.replay_codec import NotARecording, Replay
from signalbox_scheduler.service.reports.frame_codec import ClusterPicture, Frame
from signalbox_scheduler.service.reports.watch_feed import FRAME_S


class ReplayedFrames:
    """Frames by their order, made when they are first asked for, and kept. The first is a full
    picture."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._moments = replay.moments()
        self._picture = ClusterPicture(replay.cluster)
        self._picture.difference(replay.began_at)
        self._frames = [self._picture.full(replay.began_at)]
        self._next_at = replay.began_at + FRAME_S
        self.ends_at = replay.ends_at()
        """Seconds of the recorded clock."""
        self._is_complete = False
        self.fault = ""
        """Reason, in one line, if the last frame is not the end of the recording; else empty."""

    def frame(self, index: int) -> Frame | None:
        """Returns one frame; None behind the last."""
        while len(self._frames) <= index:
            if self._is_complete:
                return None
            self._advance()
        return self._frames[index]

    def _advance(self) -> None:
        """Replays up to the next frame, or to the end."""
        try:
            for at in self._moments:
                if at >= self._next_at:
                    self._add_frame(self._next_at)
                    self._next_at = at + FRAME_S
                    return
            if (found := self._replay.difference) is not None:
                self.fault = (
                    f"step {found.num_steps} of the recording is planned differently by this"
                    " release; `signalbox replay` without --console shows how"
                )
        except NotARecording as error:
            self.fault = str(error)
        self._is_complete = True
        self._add_frame(self.ends_at)
        self._picture.close()

    def _add_frame(self, at: float) -> None:
        if (frame := self._picture.difference(at)) is not None:
            self._frames.append(frame)
