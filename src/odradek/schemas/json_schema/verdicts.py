"""Which changes of a JSON Schema are compatible, and what a registry says about the others."""

from __future__ import annotations

COMPATIBLE = frozenset(
    [
        "ID_CHANGED",
        "DESCRIPTION_CHANGED",
        "TITLE_CHANGED",
        "DEFAULT_CHANGED",
        "SCHEMA_REMOVED",
        "TYPE_EXTENDED",
        "MAX_LENGTH_INCREASED",
        "MAX_LENGTH_REMOVED",
        "MIN_LENGTH_DECREASED",
        "MIN_LENGTH_REMOVED",
        "PATTERN_REMOVED",
        "MAXIMUM_INCREASED",
        "MAXIMUM_REMOVED",
        "MINIMUM_DECREASED",
        "MINIMUM_REMOVED",
        "EXCLUSIVE_MAXIMUM_INCREASED",
        "EXCLUSIVE_MAXIMUM_REMOVED",
        "EXCLUSIVE_MINIMUM_DECREASED",
        "EXCLUSIVE_MINIMUM_REMOVED",
        "MULTIPLE_OF_REDUCED",
        "MULTIPLE_OF_REMOVED",
        "REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED",
        "REQUIRED_ATTRIBUTE_REMOVED",
        "DEPENDENCY_ARRAY_NARROWED",
        "DEPENDENCY_ARRAY_REMOVED",
        "DEPENDENCY_SCHEMA_REMOVED",
        "MAX_PROPERTIES_INCREASED",
        "MAX_PROPERTIES_REMOVED",
        "MIN_PROPERTIES_DECREASED",
        "MIN_PROPERTIES_REMOVED",
        "ADDITIONAL_PROPERTIES_ADDED",
        "ADDITIONAL_PROPERTIES_EXTENDED",
        "UNEVALUATED_PROPERTIES_ADDED",
        "UNEVALUATED_PROPERTIES_EXTENDED",
        "PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL",
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL",
        "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
        "PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL",
        "PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "MAX_ITEMS_INCREASED",
        "MAX_ITEMS_REMOVED",
        "MIN_ITEMS_DECREASED",
        "MIN_ITEMS_REMOVED",
        "MAX_CONTAINS_INCREASED",
        "MAX_CONTAINS_REMOVED",
        "MIN_CONTAINS_DECREASED",
        "MIN_CONTAINS_REMOVED",
        "UNIQUE_ITEMS_REMOVED",
        "ADDITIONAL_ITEMS_ADDED",
        "ADDITIONAL_ITEMS_EXTENDED",
        "UNEVALUATED_ITEMS_ADDED",
        "UNEVALUATED_ITEMS_EXTENDED",
        "ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL",
        "ITEM_ADDED_TO_CLOSED_CONTENT_MODEL",
        "ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL",
        "ITEM_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "ITEM_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "ENUM_ARRAY_EXTENDED",
        "COMBINED_TYPE_EXTENDED",
        "PRODUCT_TYPE_NARROWED",
        "SUM_TYPE_EXTENDED",
        "NOT_TYPE_NARROWED",
    ]
)
"""The changes after which the new schema accepts what the old one accepted."""
LENIENT = COMPATIBLE | frozenset(
    [
        "ADDITIONAL_PROPERTIES_NARROWED",
        "ADDITIONAL_PROPERTIES_REMOVED",
        "UNEVALUATED_PROPERTIES_NARROWED",
        "UNEVALUATED_PROPERTIES_REMOVED",
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
        "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ]
)
"""The changes that the policy LENIENT allows, too."""

_CHANGED = ("PATTERN_CHANGED", "MULTIPLE_OF_CHANGED", "DEPENDENCY_ARRAY_CHANGED")
_OTHER_TYPE = (
    "TYPE_CHANGED", "TYPE_NARROWED", "COMBINED_TYPE_CHANGED", "COMBINED_TYPE_SUBSCHEMAS_CHANGED", "ENUM_ARRAY_CHANGED",
)  # fmt: skip
_ADDED_TO_OPEN = ("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", "DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
                  "ITEM_ADDED_TO_OPEN_CONTENT_MODEL")  # fmt: skip


def text(kind: str, path: str) -> str:
    """Returns the message about a change, with ``%s`` in place of the words for the new and the old schema."""
    return f'{{errorType:"{kind}", description:"{_description(kind, path)}\'}}'


def _description(kind: str, path: str) -> str:
    if kind.endswith("NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"):
        if "REMOVED" in kind:
            return (
                f"A property or item is missing in the %s schema but present at path '{path}' in the %s schema and is "
                "not covered by its partially open content model"
            )
        return (
            f"The %s schema has a property or item at path '{path}' which is missing in the %s schema and is not "
            "covered by its partially open content model"
        )
    if kind.endswith(_ADDED_TO_OPEN):
        return (
            f"The %s schema has an open content model and has a property or item at path '{path}' which is missing in "
            "the %s schema"
        )
    if kind == "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL":
        return (
            f"The %s schema has an unopen content model and has a required property at path '{path}' which is missing "
            "in the %s schema"
        )
    if kind.endswith("_REMOVED_FROM_CLOSED_CONTENT_MODEL"):
        return (
            f"The %s has a closed content model and is missing a property or item present at path '{path}' in the %s "
            "schema"
        )
    return _about_keyword(kind, path)


def _about_keyword(kind: str, path: str) -> str:
    if kind in _CHANGED:
        return f"The value at path '{path}' is different between the %s and %s schema"
    if kind in _OTHER_TYPE:
        return f"A type at path '{path}' is different between the %s schema and the %s schema"
    if kind.endswith(("_INCREASED", "_EXPANDED")):
        return f"The value at path '{path}' in the %s schema is more than its value in the %s schema"
    if kind.endswith("_DECREASED"):
        return f"The value at path '{path}' in the %s schema is less than its value in the %s schema"
    if kind.endswith(("_ADDED", "_REMOVED")):
        return f"The keyword at path '{path}' in the %s schema is not present in the %s schema"
    amount = "fewer" if kind.endswith("_NARROWED") else "more"
    return f"An array or combined type at path '{path}' has {amount} elements in the %s schema than the %s schema"
