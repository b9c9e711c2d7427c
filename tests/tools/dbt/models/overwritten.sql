{{ config(materialized='incremental', incremental_strategy='insert_overwrite',
          file_format='parquet', partition_by='day') }}
select id, customer, amount, day from {{ ref('orders') }}
{% if is_incremental() %}
where day >= date'2024-01-03'
{% endif %}
