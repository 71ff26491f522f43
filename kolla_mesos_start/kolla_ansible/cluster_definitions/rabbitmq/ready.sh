# Whether this node is ready, and a member of the cluster of the hosts in rabbitmq.conf.
#
#     sh ready.sh RABBITMQ.CONF
set -eu

healthcheck_rabbitmq
# A node that has lost its data forms a cluster of its own, until the others forget it.
hosts=$(grep -c '^cluster_formation\.classic_config\.nodes\.' "$1")
members=$(rabbitmqctl -q eval 'length(rabbit_nodes:list_members()).')
if [ "$members" -le $((hosts / 2)) ]; then
    echo "in a cluster of $members of $hosts nodes: if its data were lost, stop this container, run \`rabbitmqctl" \
        "forget_cluster_node\` for this node on another host, and start it with an empty volume"
    exit 1
fi
