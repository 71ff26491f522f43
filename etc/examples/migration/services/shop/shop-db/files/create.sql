CREATE DATABASE IF NOT EXISTS shop;
USE shop;
-- Prices are whole euros, as release 1 had them.
CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, price INT NOT NULL);
INSERT IGNORE INTO orders SELECT seq, seq FROM seq_1_to_1000;
