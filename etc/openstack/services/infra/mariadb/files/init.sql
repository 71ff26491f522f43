{%- set password = mariadb_root_password | replace("\\", "\\\\") | replace("'", "''") -%}
-- Each host does this at its start, for itself alone.
SET SESSION wsrep_on = OFF;
CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '{{ password }}';
ALTER USER 'root'@'%' IDENTIFIED BY '{{ password }}';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
-- For ready.sh, and for a state transfer by mariabackup.
CREATE USER IF NOT EXISTS '{{ mariadb_user }}'@'localhost' IDENTIFIED VIA unix_socket;
GRANT RELOAD, PROCESS, LOCK TABLES, BINLOG MONITOR, REPLICA MONITOR ON *.* TO '{{ mariadb_user }}'@'localhost';
