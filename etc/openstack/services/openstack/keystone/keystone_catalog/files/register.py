"""Register the services in Keystone: their users, their entries in the catalog, their endpoints.

Existing objects stay; only their passwords and URLs are updated. So this may run again.
"""

import openstack

FRONT = "http://{{ front_address }}"
SERVICES = (  # name, type, URL, password
    ("nova", "compute", f"{FRONT}:{{ nova_port }}/v2.1", "{{ nova_password }}"),
    ("placement", "placement", f"{FRONT}:{{ placement_port }}", "{{ placement_password }}"),
    ("glance", "image", f"{FRONT}:{{ glance_port }}", "{{ glance_password }}"),
    ("neutron", "network", f"{FRONT}:{{ neutron_port }}", "{{ neutron_password }}"),
)
REGION = "{{ region }}"

identity = openstack.connect().identity


def first(found):
    """The first that was found, or None."""
    return next(iter(found), None)


project = first(identity.projects(name="service", domain_id="default")) or identity.create_project(
    name="service", domain_id="default"
)
roles = [role for role in identity.roles() if role.name in ("admin", "service")]

for name, kind, url, password in SERVICES:
    user = first(identity.users(name=name, domain_id="default"))
    if user:
        identity.update_user(user, password=password)
    else:
        user = identity.create_user(name=name, domain_id="default", password=password)
    for role in roles:
        identity.assign_project_role_to_user(project, user, role)
    service = first(identity.services(type=kind)) or identity.create_service(name=name, type=kind)
    endpoints = identity.endpoints(service_id=service.id, region_id=REGION)
    known = {each.interface: each for each in endpoints}
    for interface in ("public", "internal"):
        if interface not in known:
            identity.create_endpoint(service_id=service.id, interface=interface, url=url, region_id=REGION)
        elif known[interface].url != url:
            identity.update_endpoint(known[interface], url=url)
