"""Places of a bounded queue between clients."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import OverloadedError, RateLimitError
from augury.shares import MOST_PER_FREE, Shares

clients = st.none() | st.sampled_from([bytes([name]) * 16 for name in b"abcde"])


@given(num_places=st.integers(0, 40), coming=st.lists(st.tuples(clients, st.booleans()), max_size=120))
def test_a_place_is_refused_only_where_none_is_left_or_the_client_has_its_share(
    num_places: int, coming: list[tuple[bytes | None, bool]]
) -> None:
    shares, held = Shares(), Counter[bytes | None]()
    for client, comes in coming:
        num_free = num_places - held.total()
        if not comes and held[client]:
            shares.give_back(client)
            held[client] -= 1
        elif comes:
            try:
                shares.check(client, num_free)
            except RateLimitError:
                assert client is not None and num_free > 0 and held[client] >= MOST_PER_FREE * num_free
                continue
            except OverloadedError:
                assert num_free <= 0
                continue
            shares.take(client)
            held[client] += 1
            assert held.total() <= num_places


@pytest.mark.parametrize("num_clients", [1, 2, 3, 7])
def test_greedy_clients_get_equal_shares_and_leave_a_place_for_another(num_clients: int) -> None:
    shares, held, num_places = Shares(), Counter[bytes](), 1000
    for turn in range(num_places * num_clients):
        client = bytes([turn % num_clients]) * 16
        try:
            shares.check(client, num_places - held.total())
        except RateLimitError:
            continue
        shares.take(client)
        held[client] += 1
    assert max(held.values()) - min(held.values()) <= 1
    assert held.total() / num_places == pytest.approx(8 * num_clients / (8 * num_clients + 1), abs=0.01)
    shares.check(b"another client..", num_places - held.total())


def test_where_all_are_one_client_it_may_hold_all() -> None:
    shares = Shares()
    for num_free in range(50, 0, -1):
        shares.check(None, num_free)
        shares.take(None)
    with pytest.raises(OverloadedError):
        shares.check(None, 0)
