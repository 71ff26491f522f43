# Maps cell 1, or corrects its mapping.
#
# Nova fills these templates from its own configuration each time that it reads them: so they follow a new password or
# controller, and the database holds no password. Of several brokers in transport_url, `password` is the text between
# the first `:` and the last `@`.
set -eu

cell_v2() { nova-manage --config-file {{ root }}/etc/nova/nova.conf cell_v2 "$@"; }
url='{scheme}://{username}:{password}@{hostname}:{port}/{path}'

cells=$(cell_v2 list_cells)
cell=$(echo "$cells" | awk '$2 == "cell1" { print $4 }')
if [ "$cell" ]; then
    cell_v2 update_cell --cell_uuid "$cell" --database_connection "$url" --transport-url "$url"
else
    cell_v2 create_cell --name cell1 --database_connection "$url" --transport-url "$url"
fi
