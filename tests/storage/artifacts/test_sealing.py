import hashlib
import json

import pytest

from storage.artifacts.sealing import seal, unseal


def test_the_digest_is_of_all_that_stands_before_it() -> None:
    digest = hashlib.sha256(b'{"a":1').hexdigest()
    assert seal('{"a":1}') == b'{"a":1,"seal":"' + digest.encode() + b'"}'
    assert unseal(seal('{"a":1}')) == b'{"a":1}'


def test_a_document_of_several_lines_stays_readable() -> None:
    written = seal(json.dumps({"a": 1, "b": []}, indent=1))
    assert written.startswith(b'{\n "a": 1,\n "b": [],\n "seal": "')
    assert written.endswith(b'"\n}\n')
    assert json.loads(unseal(written) or b"") == {"a": 1, "b": []}


def test_other_whitespace_is_a_change_too() -> None:
    assert unseal(seal('{"a":1}') + b"\n") is None
    assert unseal(seal('{\n "a": 1\n}').replace(b' "seal"', b'  "seal"')) is None


@pytest.mark.parametrize("document", ["[]", "{}", "", '"text"'])
def test_only_objects_are_sealed(document: str) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        seal(document)
