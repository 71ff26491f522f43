# Makes cents of the prices, ten orders at a time. It can be begun again after any end, but must never run
# beside itself: what it converts next it holds in a variable, and would convert twice.
set -eu

ask() {
    mariadb --defaults-file="$client" --skip-column-names shop
}

# Some SQL in a transaction that is refused once a later attempt has made one. All of it goes to the
# server at once: who is stopped meanwhile leaves nothing locked.
step() {
    ask <<SQL
DELIMITER //
BEGIN NOT ATOMIC
    DECLARE newest BIGINT UNSIGNED;
    START TRANSACTION;
    SELECT token INTO newest FROM migration FOR UPDATE;
    IF newest > $KOLLA_FENCING_TOKEN THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused: a later attempt has begun';
    END IF;
    UPDATE migration SET token = $KOLLA_FENCING_TOKEN;
    $1
    COMMIT;
END //
SQL
}

client=$1
ask <<SQL
CREATE TABLE IF NOT EXISTS migration (id INT PRIMARY KEY, token BIGINT UNSIGNED NOT NULL, done INT NOT NULL);
INSERT IGNORE INTO migration VALUES (1, 0, 0);
SQL

step "" # Whoever is late is refused from here on, and what it has done stays as it is now.
done=$(echo "SELECT done FROM migration" | ask)
last=$(echo "SELECT MAX(id) FROM orders" | ask)
while [ "$done" -lt "$last" ]; do
    next=$((done + 10))
    step "UPDATE orders SET price = price * 100 WHERE id > $done AND id <= $next;
          UPDATE migration SET done = $next;"
    done=$next
done
