"""kolla-ansible's own `genconfig`, with which an import is compared.

By hand, for whole deployments (minutes of processor time): `.venv/bin/python -m tests.kolla_ansible --help`.
"""
