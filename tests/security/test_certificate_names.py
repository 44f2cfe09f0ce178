"""Names of certificates' owners as Java prints them, and the rules of ssl.principal.mapping.rules."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.core.errors import ConfigError
from odradek.security.names import MappingRules, UnreadableName, subject_name

KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def certificate(name: x509.Name) -> bytes:
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + datetime.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    return built.public_bytes(Encoding.DER)


def named(*attributes: tuple[x509.ObjectIdentifier, str]) -> str:
    return subject_name(certificate(x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])))


CN, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME


def test_names_are_reversed_and_have_the_keywords_of_rfc_2253() -> None:
    assert named(
        (NameOID.COUNTRY_NAME, "DE"), (NameOID.STATE_OR_PROVINCE_NAME, "BE"), (NameOID.LOCALITY_NAME, "Berlin"),
        (NameOID.STREET_ADDRESS, "Weg 1"), (NameOID.ORGANIZATION_NAME, "O"), (OU, "U"),
        (NameOID.DOMAIN_COMPONENT, "com"), (NameOID.USER_ID, "me"), (CN, "kafka"),
    ) == "CN=kafka,UID=me,DC=com,OU=U,O=O,STREET=Weg 1,L=Berlin,ST=BE,C=DE"  # fmt: skip


def test_other_attributes_have_their_number_and_their_bytes() -> None:
    assert named((NameOID.EMAIL_ADDRESS, "a@b.c"), (CN, "x")) == "CN=x,1.2.840.113549.1.9.1=#1605614062 2e63".replace(
        " ", ""
    )
    assert named((NameOID.SERIAL_NUMBER, "1")) == "2.5.4.5=#130131"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a,b", "a\\,b"),
        ('q"u', 'q\\"u'),
        ("a+b=c;d<e>f#g\\h", "a\\+b\\=c\\;d\\<e\\>f\\#g\\\\h"),
        (" lead", "\\ lead"),
        ("trail  ", "trail\\ \\ "),
        ("in side", "in side"),
        ("ä日", "ä日"),
        ("nul\0", "nul\\00"),
        ("line\nbreak", "line\nbreak"),
    ],
)
def test_special_characters_are_escaped(value: str, shown: str) -> None:
    assert named((CN, value)) == f"CN={shown}"


def test_an_attribute_of_several_parts_has_plus_signs() -> None:
    several = x509.RelativeDistinguishedName([x509.NameAttribute(CN, "a"), x509.NameAttribute(OU, "b")])
    text = subject_name(certificate(x509.Name([several])))
    assert text in ("CN=a+OU=b", "OU=b+CN=a")


@given(st.binary(max_size=300), st.integers(0, 300), st.binary(max_size=3))
@settings(max_examples=200, deadline=None)
def test_damaged_certificates_are_unreadable_and_nothing_else(junk: bytes, at: int, patch: bytes) -> None:
    whole = certificate(x509.Name([x509.NameAttribute(CN, "x")]))
    for data in (junk, whole[:at], whole[:at] + patch + whole[at + len(patch) :]):
        try:
            subject_name(data)
        except UnreadableName:
            pass
        except (ValueError, IndexError) as error:
            pytest.fail(repr(error))


# --- rules: cases of SslPrincipalMapperTest in Kafka ------------------------------------------------------------------

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_makes_the_name(name: str, user: str) -> None:
    assert MappingRules(RULES).user(name) == user


def test_a_name_that_no_rule_matches_has_no_user() -> None:
    assert MappingRules("RULE:^CN=(.*)$/$1/").user("O=x") is None
    assert MappingRules("").user("O=x") is None


def test_rules_match_letters_of_ascii_as_javas_do() -> None:
    assert MappingRules(r"RULE:^CN=(\w+),.*$/$1/").user("CN=adm\u0131n,O=x") is None
    assert MappingRules("RULE:(?i)^CN=(kafka),.*$/$1/L").user("CN=\u212aafka,O=x") is None
    with pytest.raises(ConfigError, match="is invalid"):
        MappingRules("RULE:(?u)^CN=(.*)$/$1/")


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/", "a@b"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$2.$1.$3/", "b.a.$3"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$12/", "a2"),
        (r"RULE:^CN=(.*?),OU=(.*?)$/\$1/", "$1"),
        (r"RULE:^CN=(.*?),OU=(.*?)$/$1\/x/", "a/x"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$0/", "CN=a,OU=b"),
        ("RULE:^CN=(?<user>.*?),OU=.*$/$1/U", "A"),
        ("RULE:^CN=(A.*?),OU=.*$/$1/, DEFAULT", "CN=a,OU=b"),
        ("DEFAULT", "CN=a,OU=b"),
    ],
)
def test_replacements(rules: str, user: str) -> None:
    assert MappingRules(rules).user("CN=a,OU=b") == user


@pytest.mark.parametrize("text", [
    "default", "DEFAUL", "DEFAULT/L", "DEFAULT/", "RULE:CN=(.*?),OU=ServiceUsers.*/$1", "rule:^CN=(.*?)$/$1/L",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U", "RULE:^CN=([$/$1/",
])  # fmt: skip
def test_rules_that_kafka_refuses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules: "):
        MappingRules(text)
