"""Tables and DDL jobs as frozen values, and the JSON in which TiDB keeps them."""
