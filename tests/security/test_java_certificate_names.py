"""Names of 1,000 generated certificates, and the users that rules make of them, equal those of Java and Kafka."""

from __future__ import annotations

import base64
import datetime
import random
import string
import subprocess
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier
from support.jvm import java_classes, kafka_command

from odradek.security.names import MappingRules, subject_name

COUNT = 1000
OIDS = [
    NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.LOCALITY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME, NameOID.STREET_ADDRESS, NameOID.DOMAIN_COMPONENT, NameOID.USER_ID,
    NameOID.EMAIL_ADDRESS, NameOID.SERIAL_NUMBER, NameOID.TITLE, NameOID.GIVEN_NAME, NameOID.DN_QUALIFIER,
    NameOID.SURNAME, NameOID.POSTAL_CODE, ObjectIdentifier("1.2.3.4.5"), ObjectIdentifier("2.999.1"),
]  # fmt: skip
TYPES = [_ASN1Type.UTF8String] * 6 + [_ASN1Type.PrintableString] * 2 + [
    _ASN1Type.IA5String, _ASN1Type.BMPString, _ASN1Type.T61String, _ASN1Type.VisibleString, _ASN1Type.NumericString,
]  # fmt: skip
PRINTABLE, ASCII = " '()+,-./:=?" + string.ascii_letters + string.digits, string.printable[:95]
WORDS = ["kafka", "Kafka Broker", " x", "x ", "  ", "#1", "a,b", "a+b", 'a"b', "a\\b", "a<b>c", "a;b", "a=b", "é",
         "日本", "🙂", "a  b", "\tx", "a\nb", "\x7f", "A" * 64, "ß", "e\u0301", "\u00a0",
         "x#", "=", "a\0b"]  # fmt: skip
RULES = [
    "DEFAULT", "RULE:^CN=(.*?),.*$/$1/", "RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "RULE:^CN=([^,]+).*$/$1/L,DEFAULT",
    "RULE:(.*)O=(.*)/a$2b$1\\/$3/, RULE:.*/all/",
    "RULE:^OU=.*$/ou/",
    "RULE:(?<who>.*)/$1-x/U,DEFAULT",
]  # fmt: skip


def certificate(rng: random.Random, key: Any) -> bytes:
    relative = []
    for _ in range(rng.randrange(1, 6)):
        attributes: dict[ObjectIdentifier, x509.NameAttribute] = {}
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            oid, kind = rng.choice(OIDS), rng.choice(TYPES)
            text = "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 4)))
            if oid not in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME) and rng.random() < 0.3:
                text = text.upper()
            if kind is _ASN1Type.NumericString:
                text = str(rng.randrange(10**6))
            elif kind is _ASN1Type.BMPString:
                text = "".join(one for one in text if ord(one) < 0x10000)
            elif kind is not _ASN1Type.UTF8String:
                allowed = PRINTABLE if kind is _ASN1Type.PrintableString else ASCII
                text = "".join(one for one in text if one in allowed)
            attributes[oid] = x509.NameAttribute(oid, text or "x", kind, _validate=False)
        relative.append(x509.RelativeDistinguishedName(attributes.values()))
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(relative))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
    )
    made = made.public_key(key.public_key()).serial_number(1).not_valid_before(now)
    return made.not_valid_after(now + datetime.timedelta(days=9)).sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def user(rules: str, name: str) -> str:
    found = MappingRules(rules).user(name)
    return "!" if found is None else f"={found}"


def unpacked(text: str) -> str:
    return base64.b64decode(text).decode()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Attribute's length")
def test_names_and_users_equal_those_of_java(kafka_cp: str) -> None:
    try:
        classes = java_classes(kafka_cp, "java_names")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    rng, key = random.Random(5), ec.generate_private_key(ec.SECP256R1())
    certificates = [certificate(rng, key) for _ in range(COUNT)]
    lines = [" ".join(base64.b64encode(one.encode()).decode() for one in RULES)]
    lines += [base64.b64encode(one).decode() for one in certificates]
    done = subprocess.run(
        [*kafka_command(kafka_cp, classes), "PrincipalNames"],
        input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [[unpacked(part) for part in line.split(" ")] for line in done.stdout.splitlines()]
    assert len(rows) == COUNT
    assert len({row[0] for row in rows}) > COUNT * 0.9
    wrong = [
        (subject_name(one), row[0]) for one, row in zip(certificates, rows, strict=True) if subject_name(one) != row[0]
    ]
    assert wrong == [], f"{len(wrong)}: {wrong[:5]}"
    users = [[user(rules, row[0]) for rules in RULES] for row in rows]
    assert [(row[0], mine, row[1:]) for mine, row in zip(users, rows, strict=True) if mine != row[1:]] == []
