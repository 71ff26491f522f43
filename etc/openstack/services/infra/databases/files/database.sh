# database.sh USER DATABASE...    creates them, and gives the user $PASSWORD
#
# An empty database gets the table `unfinished`, which shows sync.py that no migration of this database has finished.
set -eu

user=$1
shift
client() { mariadb --defaults-file={{ root }}/etc/mysql/client.cnf "$@"; }
{
    echo "CREATE USER IF NOT EXISTS '$user'@'%';"
    echo "ALTER USER '$user'@'%' IDENTIFIED BY '$PASSWORD';"
    for database; do
        echo "CREATE DATABASE IF NOT EXISTS $database; GRANT ALL ON $database.* TO '$user'@'%';"
    done
} | client
for database; do
    [ -n "$(client -e "SHOW TABLES FROM $database")" ] || client -e "CREATE TABLE $database.unfinished (migration INT)"
done
