{%- set password = keystone_database_password | replace("\\", "\\\\") | replace("'", "''") -%}
CREATE USER IF NOT EXISTS 'keystone'@'%' IDENTIFIED BY '{{ password }}';
ALTER USER 'keystone'@'%' IDENTIFIED BY '{{ password }}';
GRANT ALL ON keystone.* TO 'keystone'@'%';
