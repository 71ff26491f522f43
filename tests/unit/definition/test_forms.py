"""What names, paths, modes, owners and URLs must look like."""

from __future__ import annotations

import pytest

from kolla_mesos_start.definition import strings

GOOD: dict[strings.Form, list[str]] = {
    strings.bad_perm: ["0600", "755", "0o640", "0o0640", "4755", "000"],
    strings.bad_segment: ["db_sync", "a.conf.j2", "...", "ü", "disable-netfilter-4", "a b"],
    strings.bad_path: ["mariadb/daemon", "keystone-api/db_sync"],
    strings.bad_service: ["openstack/keystone/keystone-api", "memcached"],
    strings.bad_scope: ["global", "local"],
    strings.bad_generation: ["quay.io/kolla/keystone:2024.1", "3", "."],
    strings.bad_variable: ["KOLLA_BOOTSTRAP", "a-b.c"],
    strings.bad_file: ["/etc/keystone/keystone.conf", "/a", "/a/../b"],
    strings.bad_user: ["keystone", "42425", "www-data", "_apt", "DOMAIN\\user"],
    strings.bad_owner: ["keystone", "keystone:kolla", "42425:42400", "root:0"],
    strings.bad_url: [
        *("http://localhost", "https://host:5000/v3", "http://[::1]:8080/", "http://10.0.0.1/?a=b"),
        *("http://host?ready", "https://a.b-c.example/x%20y"),
    ],
    strings.any_text: ["", "anything"],
}

BAD: dict[strings.Form, list[str]] = {
    strings.bad_perm: ["", "60", "00600", "0800", "rw", "0x600", "0o", "0o77777", "0600 ", "-600", "٠٦٠٠"],
    strings.bad_segment: ["", ".", "..", "a/b", "a\0", "a\n", "\x7f", "\ue000", "\uffff", "\U0001f600"],
    strings.bad_path: ["", "daemon", "a/b/c", "/daemon", "a/", "a/..", "mariadb/dae\nmon"],
    strings.bad_service: ["", "/a", "a/", "a//b", "a/../b"],
    strings.bad_scope: ["", "Global", "host"],
    strings.bad_generation: ["", " \n"],
    strings.bad_variable: ["", "A=B"],
    strings.bad_file: ["", "etc/x", "/", "/etc/", "/etc/..", "/etc/.", "~/x"],
    strings.bad_user: ["", "a b", "a:b", "a/b", "a\n"],
    strings.bad_owner: ["", ":", "a:", ":b", "a:b:c", "a b"],
    strings.bad_url: [
        *("", "localhost", "ftp://host", "http://", "http:///path", "http://user:word@host", "http://a b"),
        *("http://host/a b", "http://host:port", "http://host/a\r\nX: y", "http://host\n"),
    ],
}


@pytest.mark.parametrize(("form", "text"), [(form, text) for form in GOOD for text in GOOD[form]])
def test_a_good_string_is_accepted(form: strings.Form, text: str) -> None:
    """There is no message then."""
    assert form(text) is None


@pytest.mark.parametrize(("form", "text"), [(form, text) for form in BAD for text in BAD[form]])
def test_for_a_bad_string_the_form_says_what_was_expected(form: strings.Form, text: str) -> None:
    """The message is a fixed sentence: it can't show a secret."""
    answer = form(text)
    assert answer is not None
    assert answer.startswith("expected ")
    assert answer == form(BAD[form][0])
