-- In a graph: the steps that a declared step comes after, as a JSON list; null: the one declared before it.
ALTER TABLE treadle.steps ADD COLUMN comes_after text;
-- Of an item of a mapped step: its place in the list. Of the mapped step, which has no key: how many items it has.
ALTER TABLE treadle.steps ADD COLUMN item integer;
CREATE INDEX steps_item ON treadle.steps (n, name, item) WHERE item IS NOT NULL;
