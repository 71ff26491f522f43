# database.sh USER DATABASE...    creates them, and gives the user $PASSWORD
set -eu

user=$1
shift
{
    echo "CREATE USER IF NOT EXISTS '$user'@'%';"
    echo "ALTER USER '$user'@'%' IDENTIFIED BY '$PASSWORD';"
    for database; do
        echo "CREATE DATABASE IF NOT EXISTS $database; GRANT ALL ON $database.* TO '$user'@'%';"
    done
} | mariadb --defaults-file={{ root }}/etc/mysql/client.cnf
