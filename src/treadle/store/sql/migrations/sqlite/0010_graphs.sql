-- In a graph: the steps that a declared step comes after, as a JSON list; NULL: the one declared before it.
ALTER TABLE treadle_steps ADD COLUMN comes_after TEXT;
-- Of an item of a mapped step: its place in the list. Of the mapped step, which has no key: how many items it has.
ALTER TABLE treadle_steps ADD COLUMN item INTEGER;
CREATE INDEX treadle_steps_item ON treadle_steps (n, name, item) WHERE item IS NOT NULL;
