"""Train the groups of a sweep in this process, one after the other."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fragmenta.runs.checkpoints import Checkpoint, CheckpointFolder
from fragmenta.search.alone import train_alone
from fragmenta.search.group_training import GroupResult, GroupRun, OnProgress, train_group
from fragmenta.search.groups import Programs, Task, TrialGroup


class SweepFolder:
    """Where the groups of a sweep in training are saved, and the runs of trials that are trained alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def checkpoints(self, group: TrialGroup) -> CheckpointFolder:
        """The checkpoints of a group."""
        folder = self._path / "pending" / f"group-{group.proposals[0].number}"
        return CheckpointFolder(folder, keep_last=1, keep_best=False)

    def saved(self, group: TrialGroup) -> Checkpoint | None:
        """The checkpoint of a group, if it has one."""
        folder = self.checkpoints(group)
        return folder.newest() if folder.path.exists() else None

    def runs(self, trial: int) -> Path:
        """The folder with the runs of a trial that is trained alone."""
        return self._path / "runs" / str(trial)


class InProcessTrainer:
    """Trains groups in this process."""

    processes = 1

    def __init__(self, task: Task, programs: Programs, folder: SweepFolder) -> None:
        self._task, self._programs, self._folder = task, programs, folder

    def train(
        self, groups: Sequence[TrialGroup], stop: Callable[[], bool], report: OnProgress
    ) -> Iterator[GroupResult]:
        """Train groups, and yield the result of each that was not stopped."""
        for group in groups:
            if group.traced is None:
                (proposal,) = group.proposals
                result = GroupResult([train_alone(self._task, proposal, self._folder.runs(proposal.number))], None)
            else:
                save = self._folder.checkpoints(group).save
                run = GroupRun(self._folder.saved(group), save, stop, report)
                result = train_group(self._task, self._programs, group, run)
            if result:
                yield result
            if stop():
                return

    def close(self) -> None:
        """Nothing was started."""
