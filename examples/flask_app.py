"""A Flask application: blocking calls in views, and the application's context in handlers.

    pip install treadle flask
    python examples/flask_app.py

`flask --app flask_app run` serves it, and `treadle worker flask_app:queue` runs the jobs.
"""

from typing import Any

from flask import Flask, current_app

from treadle import Queue
from treadle.integrations.flask import use_app_context

queue = Queue("sqlite:///mail.db")


@queue.job
def send_mail(to: str) -> str:
    return f"{current_app.config['SENDER']} wrote to {to}"


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["SENDER"] = "shop@example.com"

    @app.post("/mails/<to>")
    def write(to: str) -> tuple[dict[str, Any], int]:
        return {"id": send_mail.sync.enqueue(to).id}, 202

    @app.get("/mails/<id>")
    def show(id: str) -> dict[str, Any]:
        job = queue.sync.get(id)
        return {"status": job.status, "result": job.result_value}

    return app


use_app_context(queue, create_app)


def main() -> None:
    client = create_app().test_client()
    id = client.post("/mails/ada@example.com").get_json()["id"]
    print(client.get(f"/mails/{id}").get_json()["status"])
    queue.sync.run_until_empty()  # what a worker does
    print(client.get(f"/mails/{id}").get_json()["result"])
    queue.sync.close()


if __name__ == "__main__":
    main()
