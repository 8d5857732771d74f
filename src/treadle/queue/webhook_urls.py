"""Which URLs this process accepts for webhooks, and the one for all jobs of its queue."""

from __future__ import annotations

from dataclasses import replace

from treadle.model.errors import InvalidInput
from treadle.model.settings import Settings
from treadle.model.webhooks import QUEUE_ENDPOINT, Endpoint
from treadle.policy.addresses import Exempt
from treadle.policy.saved_endpoint import KIND, body_of, endpoint_from
from treadle.policy.webhook_signing import checked_secret
from treadle.policy.webhook_urls import check_url
from treadle.store.protocol import Store
from treadle.store.values import RecordWrite

ENV_DESCRIPTION = "TREADLE_WEBHOOK_URL"


class UrlRules:
    """What `TREADLE_WEBHOOK_ALLOW` and `TREADLE_WEBHOOK_HTTP` of this process allow."""

    def __init__(self, settings: Settings) -> None:
        self._allow = Exempt.parse(settings.webhook_allow)
        self._http = settings.webhook_http
        if settings.webhook_url:
            self.check(settings.webhook_url, "webhook_url")
        if settings.webhook_secret:
            checked_secret(settings.webhook_secret, "webhook_secret")

    def check(self, url: object, field: str = "url") -> str:
        """InvalidInput says what is wrong with it."""
        if not isinstance(url, str):
            raise InvalidInput(f"{field}: {type(url).__name__} is not a URL", field=field)
        check_url(url, self._allow, self._http, field)
        return url


async def save_queue_url(store: Store, url: str) -> None:
    """Make or update the endpoint of `TREADLE_WEBHOOK_URL`, so that every process knows it. An operator's switch and
    other changes of it stay."""
    if not url:
        return
    (record,) = await store.get_records([(KIND, QUEUE_ENDPOINT)])
    if record is None:
        made = Endpoint(QUEUE_ENDPOINT, url, description=ENV_DESCRIPTION)
        await store.write_records([RecordWrite(KIND, QUEUE_ENDPOINT, QUEUE_ENDPOINT, body_of(made))])
        return
    known = endpoint_from(record.id, record.body, record.version, record.created_at, record.updated_at)
    if known.url != url:
        body = body_of(replace(known, url=url))
        # Another process that is just starting may have written the same.
        await store.write_records([RecordWrite(KIND, record.id, record.key, body, None, record.version)])
