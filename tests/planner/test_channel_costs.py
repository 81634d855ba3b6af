"""What channels cost: between measured sizes, beyond them, and where nothing is measured."""

import pytest

from fragmenta.planner.channel_timing import measure_channels
from fragmenta.planner.channels import ChannelCost, Channels, is_noted, keep_costs
from fragmenta.planner.profile import Profile


def profile_with(name: str, *costs: ChannelCost) -> Profile:
    profile = Profile()
    keep_costs(profile, "some", {name: costs})
    return profile


def test_costs_are_proportional_between_sizes_and_beyond_the_last() -> None:
    rows = ChannelCost(100, 1.0, 2.0, 3.0), ChannelCost(200, 2.0, 2.0, 4.0), ChannelCost(400, 6.0, 2.0, 4.0)
    channels = Channels(profile_with("pipe", *rows))
    assert channels.message("pipe", 10) == rows[0]
    assert channels.message("pipe", 150) == ChannelCost(150, 1.5, 2.0, 3.5)
    assert channels.message("pipe", 800).send == pytest.approx(14.0)


def test_collectives_of_other_numbers_lie_between_those_that_were_measured() -> None:
    profile = profile_with("collective of 2", ChannelCost(64, way=1.0))
    keep_costs(profile, "others", {"collective of 4": [ChannelCost(64, way=2.0)]})
    assert [Channels(profile).collective(n, 8) for n in (2, 3, 4, 8)] == [1.0, 1.5, 2.0, 4.0]


def test_channels_of_this_machine_are_measured_once_and_kept() -> None:
    profile = Profile()
    measure_channels(profile, ["threads", "processes"])
    assert not is_noted(profile, "collectives")
    pipe = Channels(profile).message("pipe", 2**22)
    assert pipe.send > Channels(profile).message("pipe", 64).send, "copying four million bytes takes longer"
    before = dict(profile.notes["channels"])
    measure_channels(profile, ["threads", "processes"])
    assert profile.notes["channels"] == before


@pytest.mark.full
def test_collectives_are_measured_among_processes() -> None:
    profile = Profile()
    measure_channels(profile, ["collectives"])
    assert profile.notes["channels"]["collectives"], "processes that exchange values start on any machine"
    assert 0 < Channels(profile).collective(2, 64) < 1
