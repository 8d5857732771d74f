"""A handler for processes, which find it by its name."""


def area(width: int, *, height: int) -> int:
    return width * height
