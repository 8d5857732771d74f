"""Enqueue in your own transaction: the order and its mail are there together, or neither is.

    python examples/transaction_sqlite3.py

The queue's tables live in the application's own database file. `connection=` joins the transaction that is open
there; if it rolls back, the job was never there.
"""

import sqlite3

from treadle import Queue

queue = Queue("sqlite:///shop.db")


def place_order(connection: sqlite3.Connection, customer: str, cents: int) -> str:
    with connection:  # commits, or rolls back if anything in it fails
        order = connection.execute("INSERT INTO orders (customer, cents) VALUES (?, ?)", (customer, cents)).lastrowid
        job = queue.sync.enqueue("send_confirmation", {"order": order, "customer": customer}, connection=connection)
        if cents < 0:
            raise ValueError("an order can't cost less than nothing")
    return job.id


def main() -> None:
    connection = sqlite3.connect("shop.db", timeout=30)
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
    connection.execute("DELETE FROM orders")
    connection.commit()
    before = queue.sync.count(topic="send_confirmation")

    job_id = place_order(connection, "Ada", 4200)
    print(queue.sync.get(job_id).payload["customer"])
    try:
        place_order(connection, "Bob", -1)
    except ValueError as error:
        print("rolled back:", error)

    orders = connection.execute("SELECT count(*) FROM orders").fetchone()[0]
    jobs = queue.sync.count(topic="send_confirmation") - before
    print(f"{orders} order, {jobs} job")
    connection.close()
    queue.sync.close()


if __name__ == "__main__":
    main()
