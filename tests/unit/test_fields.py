"""One table of a job's fields: every other list of them has the same fields."""

import dataclasses

from treadle.http import documents
from treadle.model.fields import DOCUMENTS, FIELDS, JOB_FIELDS, JSON_NAMES, NEW_JOB, FieldKind
from treadle.model.job import Job
from treadle.policy import rules
from treadle.store.sql.where import COLUMNS

PROPERTIES = {"max_retries"}


def test_python_has_each_field() -> None:
    hidden = {"token", "waits_until", "deduplicated", "truncated", "queue", "track_hash", "track_token"}
    own = {one.name for one in dataclasses.fields(Job)} - hidden
    assert own == {field.attribute or field.name for field in JOB_FIELDS} - PROPERTIES


def test_filters_rules_and_sorts_know_each_field() -> None:
    assert {*FIELDS, *DOCUMENTS} == JSON_NAMES == set(COLUMNS)
    assert rules.FIELDS is FIELDS


def test_openapi_describes_each_field_in_the_order_of_the_table() -> None:
    schema = documents.JobDocument.model_json_schema(mode="serialization")
    assert list(schema["properties"]) == [field.json for field in JOB_FIELDS] == schema["required"]


def test_openapi_says_what_may_be_null() -> None:
    properties = documents.JobDocument.model_json_schema(mode="serialization")["properties"]
    anything = {"result"}
    nullable = {name for name, schema in properties.items() if {"type": "null"} in schema.get("anyOf", [])}
    assert nullable | anything == {field.json for field in JOB_FIELDS if not field.always}


def test_a_job_that_is_about_to_be_made_has_each_field() -> None:
    assert NEW_JOB.keys() == JSON_NAMES
    for field in JOB_FIELDS:
        if field.kind is FieldKind.DATE or not field.always:
            assert field.new is None
