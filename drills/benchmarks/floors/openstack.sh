#!/bin/bash
# openstack.sh SITE HOST COMPUTE
#
# The start of etc/openstack in plain shell: the same commands, from the files that agents have rendered below SITE, all
# at once and ordered by marker files. Ends with status 0 when all are up; its daemons, each in a session of its own,
# have their process ids in SITE/marks/*.pid. What the agents' start has stored is removed first. PATH has the programs.
set -eu

site=$1/$2 compute=$1/$3 host=$3
marks=$1/marks
rm -rf "$marks" "$site/mariadb/var" "$site/mariadb/run" "$site/rabbitmq/var/lib/rabbitmq/mnesia" "$compute/nova-compute/var"
mkdir "$marks"
exec 3<><(:) # Nothing is ever written to it: so `read -t` sleeps, without a process for each pause.

pause() { read -r -t 0.05 -u 3 || :; }
mark() { : >"$marks/${1//\//,}"; }
need() { for name; do until [ -e "$marks/${name//\//,}" ]; do pause; done; done; }
once() {
    name=$1
    shift
    "$@" >"$marks/${name//\//,}.log" 2>&1 || { echo "$name: status $?: $*"; kill 0; }
    mark "$name"
}
sync() { # NAME CONFIG SECTION COMMAND...
    local name=$1 config=$2 section=$3
    shift 3
    once "$name" python3 "${config%/*}/sync.py" "$config" "$section" "$@"
}
daemon() {
    name=$1
    shift
    setsid "$@" >"$marks/$name.log" 2>&1 &
    echo $! >"$marks/$name.pid"
}
setting() { sed -n "s/^$2 *= *//p" "$1"; }
answers() { until curl -sfm 5 -o /dev/null "http://$1$2"; do pause; done; }
accepts() { until (: <>"/dev/tcp/${1%:*}/${1#*:}") 2>/dev/null; do pause; done; }
api() { # ROLE DIRECTORY PATH
    daemon "$1" uwsgi --ini "$site/$1/etc/$2/uwsgi.ini"
    answers "$(setting "$site/$1/etc/$2/uwsgi.ini" http-socket)" "$3"
    mark "$1"
}
listens() { until python3 "$1/etc/nova/rpc_ready.py" "$2"; do pause; done; }

mariadb() {
    local files=$site/mariadb
    mkdir -p "$files/var/lib/mysql" "$files/run/mysqld"
    once mariadb/bootstrap mariadb-install-db --defaults-file="$files/etc/mysql/my.cnf" \
        --datadir="$files/var/lib/mysql/data" --auth-root-authentication-method=socket --skip-test-db
    daemon mariadb mariadbd --defaults-file="$files/etc/mysql/my.cnf"
    until mariadb-admin --socket="$files/run/mysqld/mysqld.sock" ping; do pause; done >/dev/null 2>&1
    for user in keystone glance placement neutron; do
        PASSWORD=$(password $user) once databases/$user sh "$site/databases/etc/mysql/database.sh" $user $user
    done
    PASSWORD=$(password nova) once databases/nova \
        sh "$site/databases/etc/mysql/database.sh" nova nova nova_api nova_cell0
}
password() { sed -n "s,.*mysql+pymysql://$1:\([^@]*\)@.*,\1,p" "$site/$1"-*/etc/"$1"/*.conf | head -n 1; }

memcached() {
    local config=$site/keystone-api/etc/keystone/keystone.conf
    local address
    address=$(setting "$config" memcache_servers)
    daemon memcached memcached -u root --listen="${address%:*}" --port="${address#*:}"
    accepts "$address"
    mark memcached
}

rabbitmq() {
    local files=$site/rabbitmq
    HOME=$files/var/lib/rabbitmq RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_NODENAME=rabbit@localhost \
        RABBITMQ_CONFIG_FILE=$files/etc/rabbitmq/rabbitmq.conf \
        RABBITMQ_ADVANCED_CONFIG_FILE=$files/etc/rabbitmq/advanced.config \
        RABBITMQ_ENABLED_PLUGINS_FILE=$files/etc/rabbitmq/enabled_plugins \
        RABBITMQ_MNESIA_BASE=$files/var/lib/rabbitmq/mnesia RABBITMQ_LOG_BASE=$files/var/lib/rabbitmq/log \
        RABBITMQ_DIST_PORT=$DIST_PORT ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$EPMD_PORT \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +sbwt none" \
        daemon rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server
    accepts "$(setting "$files/etc/rabbitmq/rabbitmq.conf" listeners.tcp.1)"
    mark rabbitmq
}

keystone() {
    local config=$site/keystone-api/etc/keystone/keystone.conf url
    url=$(sed -n 's/^export OS_AUTH_URL=//p' "$site/keystone_catalog/etc/keystone/openrc")
    . "$site/keystone_catalog/etc/keystone/openrc"
    need databases/keystone
    sync keystone/db_sync "$config" database keystone-manage --config-file "$config" db_sync
    OS_BOOTSTRAP_PASSWORD=$OS_PASSWORD once keystone/bootstrap keystone-manage --config-file "$config" bootstrap \
        --bootstrap-username admin --bootstrap-project-name admin --bootstrap-role-name admin \
        --bootstrap-service-name keystone --bootstrap-region-id RegionOne \
        --bootstrap-internal-url "$url" --bootstrap-public-url "$url"
    need memcached
    OS_KEYSTONE_CONFIG_DIR=${config%/*} api keystone-api keystone /v3
    answers "${url#http://}" ""
    once keystone/register python3 "$site/keystone_catalog/etc/keystone/register.py"
}

glance() {
    local config=$site/glance-api/etc/glance/glance-api.conf
    need databases/glance
    sync glance/db_sync "$config" database glance-manage --config-file "$config" db_sync
    need memcached
    OS_GLANCE_CONFIG_DIR=${config%/*} api glance-api glance /healthcheck
}

placement() {
    local config=$site/placement-api/etc/placement/placement.conf
    need databases/placement
    sync placement/db_sync "$config" placement_database placement-manage --config-file "$config" db sync
    need memcached
    OS_PLACEMENT_CONFIG_DIR=${config%/*} api placement-api placement /
}

neutron() {
    local config=$site/neutron-server/etc/neutron/neutron.conf
    need databases/neutron
    sync neutron/db_sync "$config" database neutron-db-manage --config-file "$config" upgrade heads
    need memcached rabbitmq
    OS_NEUTRON_CONFIG_DIR=${config%/*} OS_NEUTRON_CONFIG_FILES=neutron.conf api neutron-server neutron /
}

nova_api() {
    local config=$site/nova-api/etc/nova/nova.conf
    need databases/nova
    sync nova/api_db_sync "$config" api_database nova-manage --config-file "$config" api_db sync
    once nova/map_cell0 nova-manage --config-file "$config" cell_v2 map_cell0
    need nova/create_cell1 nova/db_sync nova/cell0_db_sync memcached rabbitmq
    OS_NOVA_CONFIG_DIR=${config%/*} OS_NOVA_CONFIG_FILES="$PACKAGED/nova/api-paste.ini;nova.conf" api nova-api nova /
}

nova_conductor() {
    local config=$site/nova-conductor/etc/nova/nova.conf
    need databases/nova
    sync nova/db_sync "$config" database nova-manage --config-file "$config" db sync --local_cell
    need nova/api_db_sync
    once nova/create_cell1 nova-manage --config-file "$config" cell_v2 create_cell --name cell1
    need nova/map_cell0 nova/cell0_db_sync keystone/register memcached rabbitmq
    daemon nova-conductor nova-conductor --config-file "$config"
    listens "$site/nova-conductor" conductor
    mark nova-conductor
}

nova_scheduler() {
    local config=$site/nova-scheduler/etc/nova/nova.conf
    need databases/nova
    sync nova/cell0_db_sync "${config%/*}/cell0.conf" database nova-manage --config-file "$config" --config-file "${config%/*}/cell0.conf" db sync --local_cell
    need nova/map_cell0 nova/create_cell1 nova/db_sync keystone/register memcached rabbitmq
    daemon nova-scheduler nova-scheduler --config-file "$config"
    listens "$site/nova-scheduler" scheduler
    mark nova-scheduler
}

nova_compute() {
    local files=$compute/nova-compute url
    python3 "$files/etc/nova/compute_id.py" "$files/var/lib/nova" "$host"
    need nova-conductor placement-api
    daemon nova-compute nova-compute --config-file "$files/etc/nova/nova.conf"
    listens "$files" compute
    mark nova-compute
    once nova/discover nova-manage --config-file "$compute/nova_hosts/etc/nova/nova.conf" cell_v2 discover_hosts
}

cd "$site/haproxy/etc/haproxy"
daemon haproxy haproxy -W -f haproxy.cfg
for part in mariadb memcached rabbitmq keystone glance placement neutron nova_api nova_conductor nova_scheduler \
    nova_compute; do
    $part &
    parts="${parts:-} $!"
done
for part in $parts; do wait "$part"; done
