CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '{{ mariadb_root_password }}';
ALTER USER 'root'@'%' IDENTIFIED BY '{{ mariadb_root_password }}';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
