from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.tasks import default_task_backend
from django.tasks.exceptions import TaskResultDoesNotExist
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order
from shop.tasks import draw_label, send_receipt


def place_order(customer: str) -> tuple[Order, str]:
    """The order and its tasks are stored together, or not at all: no on_commit is needed."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer)
        result = send_receipt.enqueue(order.pk)
        draw_label.using(priority=-10).enqueue(order.pk)
        if customer == "nobody":
            raise ValueError("nobody can't order")
    return order, result.id


@csrf_exempt
def order(request: HttpRequest, customer: str) -> JsonResponse:
    try:
        made, result = place_order(customer)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    return JsonResponse({"order": made.pk, "task": result}, status=202)


def show_task(request: HttpRequest, id: str) -> JsonResponse:
    try:
        result = default_task_backend.get_result(id)
    except TaskResultDoesNotExist:
        return JsonResponse({"error": "no such task"}, status=404)
    value = result.return_value if result.status == "SUCCESSFUL" else None
    return JsonResponse({"status": result.status, "value": value, "attempts": result.attempts})
