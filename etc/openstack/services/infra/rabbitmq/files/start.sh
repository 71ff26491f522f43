{%- set addresses = {} -%}
{%- for controller in controllers.split() -%}
{%- set _ = addresses.update([controller.split('=')]) -%}
{%- endfor -%}
{%- set own = addresses[kolla_hostname] -%}
# Becomes a node of the cluster. Its name consists of the host's name and its address, which needs no name server.
set -eu

export HOME="{{ root }}/var/lib/rabbitmq"
export RABBITMQ_CONF_ENV_FILE=/dev/null
export RABBITMQ_CONFIG_FILE="{{ root }}/etc/rabbitmq/rabbitmq.conf"
export RABBITMQ_ADVANCED_CONFIG_FILE="{{ root }}/etc/rabbitmq/advanced.config"
export RABBITMQ_ENABLED_PLUGINS_FILE="{{ root }}/etc/rabbitmq/enabled_plugins"
export RABBITMQ_MNESIA_BASE="{{ root }}/var/lib/rabbitmq/mnesia"
export RABBITMQ_LOG_BASE="{{ root }}/var/lib/rabbitmq/log"
export RABBITMQ_USE_LONGNAME=true
export RABBITMQ_NODENAME="{{ kolla_hostname | replace('.', '-') }}@{{ own }}"
export RABBITMQ_DIST_PORT={{ rabbitmq_distribution_port }}
export ERL_EPMD_ADDRESS={{ rabbitmq_epmd_addresses or own }}
export ERL_EPMD_PORT={{ rabbitmq_epmd_port }}
# Busy waiting would take processor time from other services.
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface { {{- own | replace('.', ',') -}} } +sbwt none"

# Not /usr/sbin/rabbitmq-server, which changes to another user if it is started as root.
exec /usr/lib/rabbitmq/bin/rabbitmq-server
