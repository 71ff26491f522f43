# Converts prices to cents, ten orders at a time. It can be started again after any end. But it must never run
# twice at the same time: each run keeps its position in a variable, so prices would be converted twice.
set -eu

ask() {
    mariadb --defaults-file="$client" --skip-column-names shop
}

# Run SQL in a transaction, which fails if a later attempt has made one before. All of it is sent to the
# server at once, so that a script that is stopped meanwhile leaves no lock.
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

step "" # From here on earlier attempts are refused, so what they have done does not change any more.
done=$(echo "SELECT done FROM migration" | ask)
last=$(echo "SELECT MAX(id) FROM orders" | ask)
while [ "$done" -lt "$last" ]; do
    next=$((done + 10))
    step "UPDATE orders SET price = price * 100 WHERE id > $done AND id <= $next;
          UPDATE migration SET done = $next;"
    done=$next
done
