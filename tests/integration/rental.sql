-- A video rental: five engines, foreign keys that cascade, triggers, views, routines, rare types.
CREATE DATABASE rental CHARACTER SET utf8mb4;
CREATE TABLE rental.country (
  country_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(50) NOT NULL,
  changed TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP
) ENGINE=InnoDB;
CREATE TABLE rental.city (
  city_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(50) NOT NULL,
  country_id SMALLINT UNSIGNED NOT NULL,
  KEY city_country (country_id),
  CONSTRAINT city_country FOREIGN KEY (country_id) REFERENCES rental.country (country_id)
    ON DELETE RESTRICT ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.address (
  address_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  street VARCHAR(80) NOT NULL,
  postal_code CHAR(10),
  city_id SMALLINT UNSIGNED,
  place GEOMETRY NOT NULL,
  CONSTRAINT address_city FOREIGN KEY (city_id) REFERENCES rental.city (city_id)
    ON DELETE SET NULL ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.language (
  language_id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name CHAR(20) NOT NULL
) ENGINE=InnoDB;
CREATE TABLE rental.category (
  category_id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(25) NOT NULL
) ENGINE=MyISAM;
CREATE TABLE rental.actor (
  actor_id SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  first_name VARCHAR(45) NOT NULL,
  last_name VARCHAR(45) NOT NULL,
  KEY actor_last (last_name)
) ENGINE=InnoDB;
CREATE TABLE rental.film (
  film_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  title VARCHAR(128) NOT NULL,
  description TEXT,
  released YEAR,
  language_id TINYINT UNSIGNED NOT NULL,
  original_language_id TINYINT UNSIGNED,
  rate DECIMAL(4, 2) NOT NULL DEFAULT 4.99,
  minutes SMALLINT UNSIGNED,
  rating ENUM('G', 'PG', 'PG-13', 'R', 'NC-17') DEFAULT 'G',
  features SET('Trailers', 'Commentaries', 'Deleted Scenes', 'Behind the Scenes'),
  KEY film_title (title),
  CONSTRAINT film_language FOREIGN KEY (language_id) REFERENCES rental.language (language_id)
    ON DELETE RESTRICT ON UPDATE CASCADE,
  CONSTRAINT film_original FOREIGN KEY (original_language_id)
    REFERENCES rental.language (language_id) ON DELETE SET NULL ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.film_actor (
  actor_id SMALLINT UNSIGNED NOT NULL,
  film_id INT UNSIGNED NOT NULL,
  PRIMARY KEY (actor_id, film_id),
  CONSTRAINT fa_actor FOREIGN KEY (actor_id) REFERENCES rental.actor (actor_id)
    ON DELETE CASCADE ON UPDATE CASCADE,
  CONSTRAINT fa_film FOREIGN KEY (film_id) REFERENCES rental.film (film_id)
    ON DELETE CASCADE ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.film_category (
  film_id INT UNSIGNED NOT NULL,
  category_id TINYINT UNSIGNED NOT NULL,
  PRIMARY KEY (film_id, category_id)
) ENGINE=InnoDB;
CREATE TABLE rental.film_text (
  film_id INT UNSIGNED NOT NULL PRIMARY KEY,
  title VARCHAR(128) NOT NULL,
  description TEXT,
  FULLTEXT KEY film_words (title, description)
) ENGINE=MyISAM;
CREATE TABLE rental.store (
  store_id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  address_id INT UNSIGNED NOT NULL,
  CONSTRAINT store_address FOREIGN KEY (address_id) REFERENCES rental.address (address_id)
    ON DELETE RESTRICT ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.staff (
  staff_id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(45) NOT NULL,
  picture BLOB,
  store_id TINYINT UNSIGNED,
  is_active BOOLEAN NOT NULL DEFAULT TRUE,
  CONSTRAINT staff_store FOREIGN KEY (store_id) REFERENCES rental.store (store_id)
    ON DELETE SET NULL ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.customer (
  customer_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  store_id TINYINT UNSIGNED NOT NULL,
  name VARCHAR(90) NOT NULL,
  email VARCHAR(80),
  created DATETIME NOT NULL,
  CONSTRAINT customer_store FOREIGN KEY (store_id) REFERENCES rental.store (store_id)
    ON DELETE RESTRICT ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.inventory (
  inventory_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  film_id INT UNSIGNED NOT NULL,
  store_id TINYINT UNSIGNED NOT NULL,
  CONSTRAINT inventory_film FOREIGN KEY (film_id) REFERENCES rental.film (film_id)
    ON DELETE CASCADE ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.rental (
  rental_id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  rented DATETIME NOT NULL,
  inventory_id INT UNSIGNED NOT NULL,
  customer_id INT UNSIGNED NOT NULL,
  returned DATETIME,
  UNIQUE KEY rental_once (rented, inventory_id, customer_id),
  CONSTRAINT rental_inventory FOREIGN KEY (inventory_id) REFERENCES rental.inventory (inventory_id)
    ON DELETE CASCADE ON UPDATE CASCADE,
  CONSTRAINT rental_customer FOREIGN KEY (customer_id) REFERENCES rental.customer (customer_id)
    ON DELETE CASCADE ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.payment (
  payment_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  customer_id INT UNSIGNED NOT NULL,
  rental_id INT,
  amount DECIMAL(5, 2) NOT NULL,
  paid DATETIME NOT NULL,
  CONSTRAINT payment_rental FOREIGN KEY (rental_id) REFERENCES rental.rental (rental_id)
    ON DELETE SET NULL ON UPDATE CASCADE
) ENGINE=InnoDB;
CREATE TABLE rental.visit (
  day DATE NOT NULL,
  store_id TINYINT UNSIGNED NOT NULL,
  visitors INT NOT NULL,
  PRIMARY KEY (day, store_id)
) ENGINE=MEMORY;
CREATE TABLE rental.till_roll (
  line INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  printed DATETIME NOT NULL,
  what VARCHAR(100)
) ENGINE=Aria;
CREATE TABLE rental.price_list (
  title VARCHAR(128) NOT NULL,
  rate DECIMAL(4, 2) NOT NULL
) ENGINE=CSV;
CREATE TRIGGER rental.film_inserted AFTER INSERT ON rental.film FOR EACH ROW
  INSERT INTO rental.film_text VALUES (NEW.film_id, NEW.title, NEW.description);
CREATE TRIGGER rental.film_deleted AFTER DELETE ON rental.film FOR EACH ROW
  DELETE FROM rental.film_text WHERE film_id = OLD.film_id;
CREATE TRIGGER rental.rental_dated BEFORE INSERT ON rental.rental FOR EACH ROW
  SET NEW.rented = COALESCE(NEW.rented, '2026-01-01');
CREATE VIEW rental.film_list AS
  SELECT f.title, l.name FROM rental.film f JOIN rental.language l USING (language_id);
CREATE VIEW rental.sales AS
  SELECT customer_id, SUM(amount) AS total FROM rental.payment GROUP BY customer_id;
CREATE FUNCTION rental.in_stock (which INT) RETURNS BOOLEAN READS SQL DATA
  RETURN EXISTS (SELECT 1 FROM rental.inventory WHERE film_id = which);
CREATE PROCEDURE rental.films_in_stock ()
  SELECT film_id FROM rental.inventory GROUP BY film_id;
INSERT INTO rental.country (name) VALUES ('Österreich'), ('日本'), ('Chile');
INSERT INTO rental.city (name, country_id) VALUES ('Wien', 1), ('東京', 2), ('Arica', 3);
INSERT INTO rental.address (street, postal_code, city_id, place) VALUES
  ('Ring 1', '1010', 1, ST_GeomFromText('POINT(16.37 48.2)')),
  ('銀座 4', '104', 2, ST_GeomFromText('POINT(139.76 35.67)')),
  ('Sotomayor', NULL, NULL, ST_GeomFromText('LINESTRING(0 0, 1 1)'));
INSERT INTO rental.language (name) VALUES ('Deutsch'), ('日本語'), ('Español');
INSERT INTO rental.category (name) VALUES ('Action'), ('Drama'), ('Oper');
INSERT INTO rental.actor (first_name, last_name) VALUES ('Ada', 'Stein'), ('Emi', '田中');
INSERT INTO rental.film
  (title, description, released, language_id, original_language_id, minutes, rating, features)
  VALUES ('Nut', 'A nut''s tale', 1999, 1, NULL, 90, 'PG', 'Trailers,Deleted Scenes'),
         ('Bolt', NULL, 2001, 2, 3, 120, 'NC-17', ''), ('Gear', 'Äon', NULL, 3, 1, NULL, NULL, NULL);
INSERT INTO rental.film_actor VALUES (1, 1), (1, 2), (2, 2), (2, 3);
INSERT INTO rental.film_category VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO rental.store (address_id) VALUES (1), (2);
INSERT INTO rental.staff (name, picture, store_id) VALUES ('Ina', x'00FF5C27', 1), ('Jo', NULL, 2);
INSERT INTO rental.customer (store_id, name, email, created) VALUES
  (1, 'Mia', 'mia@example.com', '2026-02-01 10:00:00'), (2, 'Ken', NULL, '2026-02-02 11:30:00');
INSERT INTO rental.inventory (film_id, store_id) VALUES (1, 1), (2, 1), (2, 2), (3, 2);
INSERT INTO rental.rental (rented, inventory_id, customer_id, returned) VALUES
  ('2026-03-01 09:00:00', 1, 1, NULL), ('2026-03-02 09:00:00', 2, 2, '2026-03-05 18:00:00');
INSERT INTO rental.payment (customer_id, rental_id, amount, paid) VALUES
  (1, 1, 4.99, '2026-03-01 09:01:00'), (2, 2, 2.50, '2026-03-02 09:02:00');
INSERT INTO rental.visit VALUES ('2026-03-01', 1, 17), ('2026-03-01', 2, 0);
INSERT INTO rental.till_roll (printed, what) VALUES ('2026-03-01 09:01:00', 'Nut 4.99');
INSERT INTO rental.price_list VALUES ('Nut', 4.99), ('Bolt', 2.50), ('Bolt', 2.50);
