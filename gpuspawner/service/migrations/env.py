"""Alembic's entry: runs on the connection that `gpuspawner.service.database` hands over."""

from alembic import context

from gpuspawner.service.tables import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    transactional_ddl=True,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
