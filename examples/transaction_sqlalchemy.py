"""The same with SQLAlchemy: `connection=` takes its connections and sessions, sync and async.

pip install sqlalchemy
python examples/transaction_sqlalchemy.py
"""

from sqlalchemy import String, create_engine, delete, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from treadle import Queue

queue = Queue("sqlite:///members.db")
engine = create_engine("sqlite:///members.db", connect_args={"timeout": 30})


class Base(DeclarativeBase):
    pass


class Member(Base):
    __tablename__ = "members"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(String(200), unique=True)


def sign_up(email: str) -> None:
    with Session(engine) as session, session.begin():
        session.add(Member(email=email))
        queue.sync.enqueue("send_welcome", {"email": email}, connection=session)


def main() -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.execute(delete(Member))
    before = queue.sync.count(topic="send_welcome")

    sign_up("ada@example.com")
    try:
        sign_up("ada@example.com")
    except Exception as error:
        print("rolled back:", type(error).__name__)

    with Session(engine) as session:
        members = session.scalar(select(func.count()).select_from(Member))
    print(f"{members} member, {queue.sync.count(topic='send_welcome') - before} job")
    engine.dispose()
    queue.sync.close()


if __name__ == "__main__":
    main()
