{%- set password = mariadb_root_password | replace("\\", "\\\\") | replace("'", "''") -%}
CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '{{ password }}';
ALTER USER 'root'@'%' IDENTIFIED BY '{{ password }}';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
