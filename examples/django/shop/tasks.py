"""The shop's tasks. Treadle's own options go into the decorator."""

from django.tasks import task

from treadle import Retry


@task(retry=Retry(5, backoff="exponential"), timeout="1m")
def send_receipt(order: int) -> str:
    from shop.models import Order

    found = Order.objects.get(pk=order)
    found.receipt = f"receipt for {found.customer}"
    found.save()
    return found.receipt


@task(queue_name="media", process=True)
def draw_label(order: int) -> str:
    """In a process, which can be killed and has several cores."""
    from shop.models import Order

    return f"label for {Order.objects.get(pk=order).customer}"


@task(takes_context=True)
async def count_orders(context) -> dict[str, int]:
    from shop.models import Order

    return {"attempt": context.attempt, "orders": await Order.objects.acount()}
