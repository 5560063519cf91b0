-- What a Drainer needs: it runs upstream's DDL too, so it may be any of it.
GRANT ALL PRIVILEGES ON *.* TO penstock@'%';
