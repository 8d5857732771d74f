from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from shop.views import place_order


class Command(BaseCommand):
    help = "Order something, which sends a receipt and draws a label in the background."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("customer")

    def handle(self, *args: Any, customer: str, **options: Any) -> None:
        made, result = place_order(customer)
        self.stdout.write(f"order {made.pk}, task {result}")
