"""Upload an image, and boot a server of it that has no network, until it is ACTIVE."""

import openstack

cloud = openstack.connect(
    auth_url="http://{{ front_address }}:{{ keystone_port }}/v3",
    username="admin",
    password="{{ keystone_admin_password }}",
    project_name="admin",
    user_domain_id="default",
    project_domain_id="default",
    region_name="{{ region }}",
)
image = cloud.create_image("tiny", data=b"\0" * 65536, disk_format="raw", container_format="bare", wait=True)
flavor = cloud.create_flavor("tiny", ram=64, vcpus=1, disk=1)
server = cloud.compute.create_server(name="first", image_id=image.id, flavor_id=flavor.id, networks="none")
server = cloud.compute.wait_for_server(server, wait=120)
print(f"the server {server.name!r} is {server.status} on {server.hypervisor_hostname}")
