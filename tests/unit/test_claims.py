"""Records of replaced processes are void, wherever and whenever they are read."""

from __future__ import annotations

from haproc.replicate.log_state.members import Claims


def test_record_before_a_newer_claim_is_valid_and_one_after_it_is_void() -> None:
    claims = Claims()
    claims.see(3, "a")
    claims.see(10, "a")
    claims.see(11, "b")
    assert not claims.void(9, "a", epoch=3)  # written in time
    assert claims.void(12, "a", epoch=3)  # written by the process that claim 10 replaced
    assert not claims.void(12, "a", epoch=10)
    assert not claims.void(12, "c", epoch=0)


def test_claims_that_are_read_again_change_nothing() -> None:
    claims = Claims([("a", 3)])
    for _ in range(2):
        claims.see(10, "a")
        assert not claims.void(9, "a", epoch=3)
        assert claims.void(11, "a", epoch=3)


def test_newest_claims_below_an_offset_are_enough_for_a_restart() -> None:
    claims = Claims()
    for offset, cluster in ((1, "b"), (2, "a"), (5, "a"), (9, "a")):
        claims.see(offset, cluster)
    assert claims.before(6) == (("a", 5), ("b", 1))
    again = Claims(claims.before(6))
    again.see(9, "a")
    for offset in range(6, 12):
        for epoch in (2, 5, 9):
            assert again.void(offset, "a", epoch) == claims.void(offset, "a", epoch)
