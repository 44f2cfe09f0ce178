"""The errors of a registry, with the codes and texts of Confluent's."""

from __future__ import annotations

from odradek.core.errors import OdradekError


class RegistryError(OdradekError):
    """An error that a registry replies. ``status``: of HTTP; ``code``: Confluent's, whose first digits repeat it."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.status = code // 100
        self.message = message
        super().__init__(message)


def no_subject(subject: str) -> RegistryError:
    return RegistryError(40401, f"Subject '{subject}' not found.")


def no_version(version: int) -> RegistryError:
    return RegistryError(40402, f"Version {version} not found.")


def no_schema(sought: object = None) -> RegistryError:
    return RegistryError(40403, "Schema not found" if sought is None else f"Schema {sought} not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    text = f"Subject '{subject}' was not deleted first before being permanently deleted"
    return RegistryError(40405, text)


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    text = f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    return RegistryError(40406, text)


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    text = f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    return RegistryError(40407, text)


def no_config(subject: str) -> RegistryError:
    return RegistryError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_mode(subject: str) -> RegistryError:
    return RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, details: list[str]) -> RegistryError:
    about = f'Schema being registered is incompatible with an earlier schema for subject "{subject}"'
    return RegistryError(40901, f"{about}, details: [{', '.join(details)}]")


def invalid_schema(details: str) -> RegistryError:
    return RegistryError(42201, details)


def invalid_version(version: object) -> RegistryError:
    allowed = 'Allowed values are between [1, 2^31-1] and the string "latest"'
    return RegistryError(42202, f"The specified version '{version}' is not a valid version id. {allowed}")


def invalid_level() -> RegistryError:
    levels = "none, backward, forward, full, backward_transitive, forward_transitive, and full_transitive"
    return RegistryError(42203, f"Invalid compatibility level. Valid values are {levels}")


def invalid_mode(
    text: str = "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.",
) -> RegistryError:
    return RegistryError(42204, text)


def not_permitted(text: str) -> RegistryError:
    return RegistryError(42205, text)


def is_referenced(key: str) -> RegistryError:
    return RegistryError(42206, f"One or more references exist to the schema {key}.")


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(42208, f"The specified subject '{subject}' is not a valid.")
