"""How often signing in may fail."""

import asyncio

import pytest

from tests.unit.accounts.desk import CLIENT, Clock
from tests.waiting import give_way
from treadle.accounts import SignInFailed, SignInThrottle, TooManyAttempts
from treadle.accounts import throttle as module


@pytest.fixture
def attempts(clock: Clock) -> SignInThrottle:
    async def sleep(seconds: float) -> None:
        clock.now += seconds

    return SignInThrottle(clock, sleep)


async def fail(attempts: SignInThrottle, identity: str = "ann", client: str = CLIENT) -> None:
    with pytest.raises(SignInFailed):
        async with attempts.attempt(client, identity):
            raise SignInFailed


async def succeed(attempts: SignInThrottle, identity: str = "ann", client: str = CLIENT) -> None:
    async with attempts.attempt(client, identity):
        pass


async def refused(attempts: SignInThrottle, identity: str = "ann", client: str = CLIENT) -> int:
    with pytest.raises(TooManyAttempts) as refusal:
        await succeed(attempts, identity, client)
    return refusal.value.retry_after


async def test_five_failures_a_minute_and_no_more(attempts: SignInThrottle, clock: Clock) -> None:
    for _ in range(5):
        await fail(attempts)
        clock.now += 10
    assert await refused(attempts) == 10
    clock.now += 9.5
    assert await refused(attempts) == 1
    clock.now += 0.5
    await fail(attempts)
    assert await refused(attempts) == 10


async def test_a_refusal_counts_for_nothing(attempts: SignInThrottle, clock: Clock) -> None:
    for _ in range(5):
        await fail(attempts)
    for _ in range(20):
        clock.now += 2
        await refused(attempts)
    clock.now += 20
    await succeed(attempts)


async def test_others_are_not_kept_out(attempts: SignInThrottle) -> None:
    for _ in range(5):
        await fail(attempts)
    await refused(attempts)
    await succeed(attempts, "bob")
    await succeed(attempts, client="192.0.2.2")


async def test_success_clears_what_the_identity_had(attempts: SignInThrottle) -> None:
    for _ in range(4):
        await fail(attempts)
    await succeed(attempts)
    for _ in range(5):
        await fail(attempts)
    await refused(attempts)


async def test_thirty_failures_of_a_client_slow_it_down_and_lock_nobody_out(
    attempts: SignInThrottle, clock: Clock
) -> None:
    for i in range(30):
        await fail(attempts, f"user{i}")
        clock.now += 1
    since = clock.now
    await succeed(attempts, "somebody.else")
    assert clock.now - since == 2
    await succeed(attempts, "somebody.else")
    assert clock.now - since == 2, "whom the address is known for does not wait"
    with pytest.raises(TooManyAttempts) as refusal:
        async with attempts.attempt(CLIENT, "a.third"):
            raise SignInFailed
    assert refusal.value.retry_after == 28
    assert clock.now - since == 4
    await succeed(attempts, "a.third", client="192.0.2.2")
    assert clock.now - since == 4


async def test_success_with_an_account_of_ones_own_does_not_clear_the_others(attempts: SignInThrottle) -> None:
    for i in range(29):
        await fail(attempts, f"user{i}")
        await succeed(attempts, "mine")
    await fail(attempts, "user29")
    with pytest.raises(TooManyAttempts):
        async with attempts.attempt(CLIENT, "user30"):
            raise SignInFailed
    await succeed(attempts, "mine")


async def test_other_errors_are_nobodys_failure(attempts: SignInThrottle) -> None:
    for _ in range(10):
        with pytest.raises(RuntimeError):
            async with attempts.attempt(CLIENT, "ann"):
                raise RuntimeError("the store is away")
    await succeed(attempts)


async def test_a_thousand_concurrent_tries_do_not_slip_through(attempts: SignInThrottle) -> None:
    tried = 0

    async def guess() -> None:
        nonlocal tried
        async with attempts.attempt(CLIENT, "ann"):
            tried += 1
            await give_way()
            raise SignInFailed

    answers = await asyncio.gather(*(guess() for _ in range(1000)), return_exceptions=True)
    assert tried == 5
    assert all(isinstance(answer, SignInFailed | TooManyAttempts) for answer in answers)


async def test_many_concurrent_good_ones_all_get_through(attempts: SignInThrottle) -> None:
    await asyncio.gather(*(succeed(attempts) for _ in range(50)))


async def test_only_so_many_stand_in_line(attempts: SignInThrottle) -> None:
    gate = asyncio.Event()

    async def slow() -> None:
        async with attempts.attempt(CLIENT, "ann"):
            await gate.wait()

    tasks = [asyncio.create_task(slow()) for _ in range(50)]
    await give_way()
    assert await refused(attempts) == 1
    await succeed(attempts, client="192.0.2.2")
    gate.set()
    await asyncio.gather(*tasks)
    await succeed(attempts)


async def test_who_gives_up_waiting_leaves_the_line(attempts: SignInThrottle) -> None:
    gate = asyncio.Event()

    async def slow() -> None:
        async with attempts.attempt(CLIENT, "ann"):
            await gate.wait()

    tasks = [asyncio.create_task(slow()) for _ in range(50)]
    await give_way()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await succeed(attempts)


async def test_memory_has_its_limit(attempts: SignInThrottle, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLIENTS", 100)
    monkeypatch.setattr(module, "MAX_IDENTITIES", 100)
    for i in range(1000):
        await fail(attempts, f"user{i}", f"client{i}")
        assert len(attempts._clients) <= 100
        assert len(attempts._identities) <= 100
    for _ in range(5):
        await fail(attempts, client="last")
    clock.now += 30
    for i in range(90):
        await succeed(attempts, f"idle{i}", f"idle{i}")
    await refused(attempts, client="last")


async def test_guesses_from_many_addresses_wait_longer_and_longer(attempts: SignInThrottle, clock: Clock) -> None:
    for i in range(10):
        await fail(attempts, client=f"client{i}")
    waits = []
    for i in range(10, 20):
        waits.append(await refused(attempts, client=f"client{i}"))
        clock.now += waits[-1]
        await fail(attempts, client=f"client{i}")
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    await succeed(attempts, "bob", "client3")


async def test_guesses_of_others_do_not_lock_the_owner_out(attempts: SignInThrottle) -> None:
    await succeed(attempts, client="home")
    for i in range(10):
        await fail(attempts, client=f"client{i}")
    await refused(attempts, client="stranger")
    await succeed(attempts, client="home")


async def test_a_quiet_while_ends_the_wait(attempts: SignInThrottle, clock: Clock) -> None:
    for i in range(30):
        await fail(attempts, client=f"client{i}")
        clock.now += 60
    await fail(attempts, client="last")
    await refused(attempts, client="a")
    clock.now += module.FORGOTTEN_AFTER + 1
    for i in range(10):
        await fail(attempts, client=f"later{i}")


async def test_many_addresses_at_one_time_do_not_slip_through(attempts: SignInThrottle) -> None:
    let_in = asyncio.Event()

    async def guess(client: str) -> str:
        try:
            async with attempts.attempt(client, "ann"):
                await let_in.wait()
                raise SignInFailed
        except (SignInFailed, TooManyAttempts) as error:
            return type(error).__name__

    guesses = [asyncio.create_task(guess(f"client{i}")) for i in range(100)]
    await give_way()
    await give_way()
    let_in.set()
    answers = await asyncio.gather(*guesses)
    assert answers.count("SignInFailed") == 10
