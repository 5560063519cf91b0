"""What became of transactions whose writer went silent (`resolving`), and who is asked.

none  a transaction whose writer is silent is rolled back after `txn-timeout-s`
sql   transactions with an outbox key are asked about in the writer's database, never guessed;
      all others as with `none`
"""
