"""Who waits for a share: kept in the database, decided upon by `gpuspawner.queue`, carried out over the fleet."""
