"""Data takes a straight way: how often it comes back to a file that it has left, and what docs/walk.md says of it."""

import pytest

import walks


@pytest.mark.full
@pytest.mark.parametrize("what", walks.WALKS)
def test_data_takes_a_straight_way(what: str) -> None:
    walk = walks.follow(what)
    assert walk.returns <= walks.WALKS[what], walk.files
    assert walks.section(what, walk) in walks.PAGE.read_text(), "run `make docs`"
